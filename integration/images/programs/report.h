#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* strerrorname_np is too new for old C libraries. */
static const char *error_name(int e)
{
	switch (e) {
	case EACCES: return "EACCES";
	case EBUSY: return "EBUSY";
	case EEXIST: return "EEXIST";
	case EINVAL: return "EINVAL";
	case EIO: return "EIO";
	case EISDIR: return "EISDIR";
	case ELOOP: return "ELOOP";
	case ENODEV: return "ENODEV";
	case ENOENT: return "ENOENT";
	case ENOTDIR: return "ENOTDIR";
	case ENXIO: return "ENXIO";
	case EPERM: return "EPERM";
	case EROFS: return "EROFS";
	}
	return strerror(e);
}
