"""Files by URL: object stores and other systems that the package fsspec opens (`s3://`, `gs://`, `memory://`, …).

`remote` opens one file and names the faults of a store. `listing` finds the files of a URL. `cache` copies files to
this machine, for all that is mapped into memory. Commands turn URLs into paths in `bertwright.commands.urls`.
"""
