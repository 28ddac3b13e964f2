// Package rawio reads and writes small files by descriptor. An os.File asks for the flags of each
// file that it opens and tries to wait for it with epoll(7): more system calls than the file needs,
// which add up when every container reads a dozen files.
package rawio
