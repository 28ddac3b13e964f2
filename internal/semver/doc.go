// Package semver parses the versions that programs such as containerd, dockerd and runc print,
// including those that distributions package under their own numbers, and compares them by
// semantic versioning.
//
//	v, err := semver.Parse("containerd containerd.io 1.7.24 88bf19b2")
//	merges := v.AtLeast(2, 1, 0)
package semver
