// Command nvidia-shimctl is the operator's tool of io.containerd.nvidia.v2. It shows what this host
// offers to containers, and what a container would get and why, with the code that the shim runs.
//
// Exit status: 0 success, 1 a problem found or a request refused, 2 wrong usage.
package main
