// Package refusals tests the containers that must not start: what their errors say, their
// gRPC codes, and that nothing is left of them.
package refusals
