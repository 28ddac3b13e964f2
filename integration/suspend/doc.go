// Package suspend pauses containers whose processes use CUDA: the simulated libcuda moves
// their GPU memory to the host and back, and fails on request.
package suspend
