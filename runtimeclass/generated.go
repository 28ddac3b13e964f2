package runtimeclass

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// generatedMark begins a configuration file that install wrote. The sum behind it tells
// a file that nobody has changed since from one that is the operator's.
const generatedMark = "# Made by nvidia-shimctl install --from-toolkit, sum "

// generatedRest follows the sum.
const generatedRest = ".\n# Uninstall removes this file while it is unchanged; edit it, and it is yours.\n"

// ErrExists means that a file is there that install does not overwrite.
var ErrExists = errors.New("it is not overwritten")

// Generated is a file's text with its mark.
func Generated(body string) []byte {
	sum := sha256.Sum256([]byte(body))
	return []byte(generatedMark + hex.EncodeToString(sum[:8]) + generatedRest + body)
}

// ours tells a generated file that nobody changed.
func ours(data []byte) bool {
	_, rest, ok := strings.Cut(string(data), generatedRest)
	return ok && string(data) == string(Generated(rest))
}

// InstallConfig is the change that writes a configuration of the shim. A file that is
// there and says the same stays; one that says something else, and is not as an
// installation left it, is ErrExists.
func (h Host) InstallConfig(path, body string) (Change, error) {
	path, err := h.follow(path)
	if err != nil {
		return Change{}, err
	}
	now, err := h.read(path)
	if err != nil {
		return Change{}, err
	}
	c := Change{Path: path, Before: now, After: now}
	switch {
	case now == nil && body == "":
		return c, nil
	case now == nil || ours(now):
		if c.After = nil; body != "" {
			c.After = Generated(body)
		}
		return c, nil
	}
	old, errOld := decode(now)
	fresh, err := decode([]byte(body))
	if err != nil {
		return Change{}, err
	}
	if errOld == nil && reflect.DeepEqual(old, fresh) {
		return c, nil
	}
	return Change{}, fmt.Errorf("%s is there and is yours: %w: remove it, or add to it by hand what --dry-run shows", path, ErrExists)
}

// UninstallConfig is the change that removes what InstallConfig wrote, while it is as it
// was written. edited says that it was written by it and changed since, and stays.
func (h Host) UninstallConfig(path string) (c Change, edited bool, err error) {
	if path, err = h.follow(path); err != nil {
		return Change{}, false, err
	}
	now, err := h.read(path)
	if err != nil {
		return Change{}, false, err
	}
	c = Change{Path: path, Before: now, After: now}
	if ours(now) {
		c.After = nil
		return c, false, nil
	}
	return c, strings.HasPrefix(string(now), generatedMark), nil
}
