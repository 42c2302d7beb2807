"""Tables and figures become one self-contained HTML page."""
