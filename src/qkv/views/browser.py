"""The system's browser."""

import webbrowser


def open_browser(address: str) -> bool:
    """Open the system's browser, unless it is one that takes over the terminal or there is none."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return False
    in_terminal = type(found).__name__ in ("GenericBrowser", "Elinks")
    return False if in_terminal else found.open(address)
