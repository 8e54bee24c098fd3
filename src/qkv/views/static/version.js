// Of the payload's shape (views/payloads.py: VERSION); a page refuses another one in a clear sentence.

export const VERSION = 3;
