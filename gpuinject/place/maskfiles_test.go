package place

import "testing"

func TestModifyDeviceFiles(t *testing.T) {
	for params, want := range map[string]string{
		"":                                   "ModifyDeviceFiles: 0\n",
		"\n\n":                               "ModifyDeviceFiles: 0\n",
		"ModifyDeviceFiles: 1\n":             "ModifyDeviceFiles: 0\n",
		"ModifyDeviceFiles:1":                "ModifyDeviceFiles: 0\n",
		"A: 1\nModifyDeviceFiles: 1\nB: 2\n": "A: 1\nModifyDeviceFiles: 0\nB: 2\n",
		"A: 1\n":                             "A: 1\nModifyDeviceFiles: 0\n",
		"A: 1":                               "A: 1\nModifyDeviceFiles: 0\n",
		"NotModifyDeviceFiles: 1\n":          "NotModifyDeviceFiles: 1\nModifyDeviceFiles: 0\n",
		"ModifyDeviceFiles: 1\nModifyDeviceFiles: 1\n": "ModifyDeviceFiles: 0\nModifyDeviceFiles: 0\n",
	} {
		if got := string(setLine([]byte(params), "ModifyDeviceFiles: 0")); got != want {
			t.Errorf("%q became %q, want %q", params, got, want)
		}
	}
}
