// Package attacks tests hostile images, volumes, specifications and driver roots. T1 and
// so on are the attacks that docs/threat-model.md lists.
package attacks
