// Package nerdctl replays the containers of nerdctl 2.3, with the labels, variables, mounts, hooks
// and CDI devices that it writes. The program itself cannot be built here: the module proxy refuses
// its module.
package nerdctl
