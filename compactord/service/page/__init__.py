"""The read-only web page of the daemon at `/`, rendered on the server.

Enter at `pages.render`; commands import `attention` only, which needs no template.
"""
