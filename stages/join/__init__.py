"""Documents made of several: the files of a repository become one."""
