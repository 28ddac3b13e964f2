// Package request tests what containers may ask for and how: names of GPUs, driver
// capabilities, requirements, a handler's options; and that a container without a request is
// untouched.
package request
