package require

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Variables of the contract.
const (
	// EnvDisable set to true skips every check.
	EnvDisable = "NVIDIA_DISABLE_REQUIRE"

	prefix  = "NVIDIA_REQUIRE_"
	jetpack = "NVIDIA_REQUIRE_JETPACK"
)

// maxVariables bounds the variables of a container, as NVIDIA's stack does.
const maxVariables = 32

// Requirement is what one variable of a container requires.
type Requirement struct {
	// Variable is its name for messages: an odd one is quoted.
	Variable string
	// Text is the expression as it was written, or as CUDA_VERSION means it.
	Text       string
	Expression Expression
}

// Disabled reports whether the variables of a container switch the checks off:
// NVIDIA_DISABLE_REQUIRE with a value that Go's ParseBool takes as true. Any other value is false.
func Disabled(env map[string]string) bool {
	disabled, _ := strconv.ParseBool(env[EnvDisable])
	return disabled
}

// FromEnv returns what the variables of a container require, sorted by name: every NVIDIA_REQUIRE_*
// but those of Jetpack, which ask for mounts, and CUDA_VERSION without NVIDIA_REQUIRE_CUDA, by
// which images older than CUDA 9 say what they need. The error names the variable.
func FromEnv(env map[string]string) ([]Requirement, error) {
	var list []Requirement
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !strings.HasPrefix(name, prefix) || strings.HasPrefix(name, jetpack) {
			continue
		}
		if len(list) == maxVariables { // guard: parsers: variables
			return nil, fmt.Errorf("more than %d variables %s*", maxVariables, prefix)
		}
		e, err := Parse(env[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", printable(name), err)
		}
		list = append(list, Requirement{Variable: printable(name), Text: env[name], Expression: e})
	}
	if value := env[request.EnvCUDAVersion]; value != "" && env[request.EnvRequireCUDA] == "" {
		r, err := fromCUDAVersion(value)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// fromCUDAVersion applies the rule for images older than CUDA 9: the driver must support the
// image's version of CUDA, without its patch level.
func fromCUDAVersion(value string) (Requirement, error) {
	// 8.0.61, or a semantic version: v10.1.243-rc1+build.
	number, _, _ := strings.Cut(strings.TrimPrefix(value, "v"), "+")
	number, _, _ = strings.Cut(number, "-")
	v, err := parseVersion(number)
	if err != nil {
		return Requirement{}, fmt.Errorf("%s=%s, without %s, is not a version of CUDA: correct it in the image, or set %s=true", request.EnvCUDAVersion, request.Quote(value), request.EnvRequireCUDA, EnvDisable)
	}
	v = append(v, 0, 0)
	text := fmt.Sprintf("cuda>=%d.%d", v[0], v[1])
	e, err := Parse(text)
	return Requirement{Variable: request.EnvCUDAVersion, Text: text, Expression: e}, err
}

// printable returns a variable's name for an error or a record.
func printable(name string) string {
	if quoted := request.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}
