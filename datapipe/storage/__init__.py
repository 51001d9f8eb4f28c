"""Files by URL, on a disk or an object store, of web servers and of the Hugging Face Hub; the lock of an output."""
