// Package advisories holds one table of published vulnerabilities and defects of the programs and
// drivers that containers with GPUs depend on, and compares versions with it.
//
//	for _, a := range advisories.Check(advisories.Runc, version, kernel) {
//		fmt.Println(a.ID, a.Effect)
//	}
//	err := advisories.CheckRuntime(output) // of `runc --version`, before a checkpoint or a restore
//
// `nvidia-shimctl check`, docs/security.md and the notes of a release come from this table. To add
// one: a row with its source, Reviewed set to the day on which all sources were read, and
// `go test ./integration/docs -run Advisories -advisories`.
package advisories
