// Package lifecycle compares every task call of a container with a GPU with the stock
// shim's.
package lifecycle
