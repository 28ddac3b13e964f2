package runtimeclass

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// The first lines of a configuration of the shim that install wrote. The sum between them tells a
// file that is as it was written from one that the operator changed.
const (
	configMark     = "# Made by nvidia-shimctl install --from-toolkit, sum "
	configMarkRest = ".\n# Uninstall removes this file while it is unchanged; edit it, and it is yours.\n"
)

func marked(body string) []byte {
	sum := sha256.Sum256([]byte(body))
	return []byte(configMark + hex.EncodeToString(sum[:8]) + configMarkRest + body)
}

// unchanged reports whether text is as install wrote it.
func unchanged(text []byte) bool {
	_, body, ok := strings.Cut(string(text), configMarkRest)
	return ok && string(text) == string(marked(body))
}

// installConfig writes a configuration of the shim. A file with the same settings stays; one with
// others that install did not write is an error.
func (p *Plan) installConfig(path, body string) error {
	change, err := p.Host.change(OtherFile, path, nil)
	if err != nil {
		return err
	}
	if change.Before != nil && !unchanged(change.Before) {
		if !sameContent(change.Before, []byte(body)) {
			return fmt.Errorf("%s is there and is yours: it is not overwritten: remove it, or add to it by hand\n%s", path, strings.TrimSpace(body))
		}
		change.After = change.Before
	} else if body != "" {
		change.After = marked(body)
	}
	p.Changes = append(p.Changes, change)
	return nil
}

// uninstallConfig removes what installConfig wrote. A file that was changed since then stays.
func (p *Plan) uninstallConfig(path string) error {
	change, err := p.Host.change(OtherFile, path, nil)
	if unchanged(change.Before) {
		p.Changes = append(p.Changes, change)
	} else if strings.HasPrefix(string(change.Before), configMark) {
		p.note("%s stays: it was changed since --from-toolkit wrote it", path)
	}
	return err
}
