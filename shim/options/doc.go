// Package options translates the runtime options of a request into those of runc.
//
// In: the protobuf message that containerd sends for a runtime handler, of any type. Out:
// Options, with runc's own options and the handler's overrides of the configuration. A type, a
// key or a value that is not known is an InvalidArgument error that names it.
//
// The package links neither containerd's task service nor its shim library.
package options
