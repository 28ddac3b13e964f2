package nvml

import "testing"

func TestBusID(t *testing.T) {
	for nvml, want := range map[string]string{
		"00000000:65:00.0": "0000:65:00.0",
		"00000000:4C:00.0": "0000:4c:00.0",
		"0000:4C:00.0":     "0000:4c:00.0",
		"00010000:01:00.0": "10000:01:00.0",
		"0000ABCD:01:1F.7": "abcd:01:1f.7",
	} {
		if got := busID(nvml); got != want {
			t.Errorf("%s is %s, want %s", nvml, got, want)
		}
	}
}
