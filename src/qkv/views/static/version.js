// @ts-check
// Of the payload's shape (views/host.py: VERSION); a page refuses another one in a clear sentence.

export const VERSION = 4;
