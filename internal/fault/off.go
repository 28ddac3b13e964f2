//go:build !shimfault

package fault

// Point does nothing.
func Point(string) error { return nil }
