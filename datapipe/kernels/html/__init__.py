"""Tags of web pages: how deeply they are nested, and the text around them, without a parser."""
