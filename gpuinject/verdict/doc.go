// Package verdict has what is said about a container: the Log of decisions for the operator, and the
// Error by which a container is refused.
package verdict
