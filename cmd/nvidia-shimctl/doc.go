// Command nvidia-shimctl is the operator's tool of io.containerd.nvidia.v2: it shows what this host
// has for containers, and what a container would get and why, by the code that the shim runs.
//
// Exit status: 0 fine, 1 a problem found or a request refused, 2 wrong usage.
package main
