package serve

import (
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// The unit of the packages may do little besides what serve needs. The score goes from 0, the best,
// to 10.
func TestTheUnitIsHardened(t *testing.T) {
	const unit, most = "../../packaging/nvidia-shim-serve.service", 4.0
	if out, err := exec.Command("systemd-analyze", "security", "--offline=yes", "--help").CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: systemd-analyze of systemd 250 or later: %v: %s", err, out)
	}
	out, err := exec.Command("systemd-analyze", "security", "--offline=yes", "--no-pager", unit).CombinedOutput()
	m := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("%v: %s", err, out)
	}
	if score, err := strconv.ParseFloat(string(m[1]), 64); err != nil || score > most {
		t.Errorf("%s, %v, want %.1f at most\n%s", m[1], err, most, out)
	}
	// Directives that systemd does not know, it ignores.
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); regexp.MustCompile(`Unknown|Failed to parse|ignoring`).Match(out) {
		t.Errorf("%v: %s", err, out)
	}
}
