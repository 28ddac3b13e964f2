// Package fault lets tests fail or kill the shim at a named step of container creation, to prove
// that nothing is left behind (T30, T31). In the product, built without the tag shimfault, Point
// does nothing and reads nothing.
package fault
