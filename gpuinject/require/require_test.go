package require

import (
	"slices"
	"strings"
	"testing"
	"time"
)

var h200 = Host{Driver: "580.159.04", CUDA: "13.0", GPUs: []GPU{{Arch: "9.0", Brand: "nvidia"}}}

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name  string
		text  string
		host  Host
		want  Verdict
		group string
	}{
		{"nothing is required", "", h200, Met, ""},
		{"blanks and commas require nothing", " , ,,  ", h200, Met, ""},
		{"one term that holds", "cuda>=12.8", h200, Met, "cuda>=12.8"},
		{"a comma is AND", "cuda>=12,driver>=590", h200, Unmet, ""},
		{"a space is OR", "cuda>=14 driver>=580", h200, Met, "driver>=580"},
		{"AND binds more than OR", "cuda>=14,driver>=500 arch>=9,brand=nvidia", h200, Met, "arch>=9,brand=nvidia"},
		{"empty groups and terms are of no account", "  ,cuda>=14,  ,,arch>=9, ", h200, Met, "arch>=9"},
		{"the first group that holds", "cuda>=14 cuda>=12 cuda>=11", h200, Met, "cuda>=12"},
		{"equal", "driver=580.159.04", h200, Met, "driver=580.159.04"},
		{"not equal", "driver!=580.159", h200, Met, "driver!=580.159"},
		{"trailing zeros are ignored", "cuda=13", h200, Met, "cuda=13"},
		{"trailing zeros of the text are ignored", "cuda=13.0.0", h200, Met, "cuda=13.0.0"},
		{"a zero within counts", "driver=580.159.0.4", h200, Unmet, ""},
		{"components are numbers", "driver>580.65.06", h200, Met, "driver>580.65.06"},
		{"less", "driver<580.159.04", h200, Unmet, ""},
		{"less than a longer one", "driver<580.159.04.1", h200, Met, "driver<580.159.04.1"},
		{"greater", "cuda>13", h200, Unmet, ""},
		{"greater than a shorter one", "driver>580.159", h200, Met, "driver>580.159"},
		{"greater or equal", "cuda>=13.0", h200, Met, "cuda>=13.0"},
		{"properties in any case", "CUDA>=12,Driver>=580,ArCh=9,BRAND=nvidia", h200, Met, "CUDA>=12,Driver>=580,ArCh=9,BRAND=nvidia"},
		{"brands in any case", "brand=NVIDIA", h200, Met, "brand=NVIDIA"},
		{"another brand", "brand=tesla", h200, Unmet, ""},
		{"not that brand", "brand!=tesla", h200, Met, "brand!=tesla"},
		{"dots that follow one another", "cuda>=12..8.", h200, Met, "cuda>=12..8."},
		{"without a GPU arch and brand hold", "arch>=99,brand=tesla", Host{Driver: "580"}, Met, "arch>=99,brand=tesla"},
		{"CUDA is not known", "cuda>=12", Host{Driver: "580"}, Unknown, "cuda>=12"},
		{"arch is not known", "arch>=9", Host{Driver: "580", GPUs: []GPU{{}}}, Unknown, "arch>=9"},
		{"brand is not known", "brand!=tesla", Host{Driver: "580", GPUs: []GPU{{}}}, Unknown, "brand!=tesla"},
		{"what is not known does not matter beside what holds", "cuda>=12 driver>=570", Host{Driver: "580"}, Met, "driver>=570"},
		{"what is not known does not matter beside what fails", "cuda>=12,driver>=590", Host{Driver: "580"}, Unmet, ""},
		{"what is not known matters beside a group that fails", "driver>=590 cuda>=12", Host{Driver: "580"}, Unknown, "cuda>=12"},
		{"a driver's version that is none is not known", "driver>=570", Host{Driver: "580-custom"}, Unknown, "driver>=570"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := Parse(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			got, group := e.check(tc.host)
			if got != tc.want || group.String() != tc.group {
				t.Errorf("%q: %v by %q, want %v by %q", tc.text, got, group, tc.want, tc.group)
			}
		})
	}
}

func TestInvalidExpressions(t *testing.T) {
	for want, texts := range map[string][]string{
		`is not one of the properties`: {"cuda>=12,memory>=1", ">=12", "(cuda>=12)", "cuda>=1 foo=1"}, // even if another group holds
		"no operator":                  {"cuda", "cuda >= 12"},
		`is not one of the operators`:  {"cuda==12", "cuda=>12", "cuda!12"},
		"no value":                     {"cuda>="},
		"is not a version":             {"cuda>=twelve", "driver>=580.65a", "driver>=-1", "driver>=.5", "driver>=18446744073709551616", "driver>=٣", "cuda>=12\tcuda>=11"},
		"by = and != only":             {"brand>=tesla"},
		"no more than 16384":           {strings.Repeat("cuda>=1 ", maxLength/8) + " "},
	} {
		for _, text := range texts {
			_, err := Parse(text)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%.50q: error %v, want one with %q", text, err, want)
			} else if s := err.Error(); len(s) > 1500 || strings.ContainsAny(s, "\n\t") {
				t.Errorf("error of %d bytes: %.80q", len(s), s)
			}
		}
	}
}

func TestFromEnv(t *testing.T) {
	type env = map[string]string
	for _, tc := range []struct {
		name string
		env  env
		want []string // variable and expression
		err  string
	}{
		{"no variable", env{"NVIDIA_VISIBLE_DEVICES": "all"}, nil, ""},
		{"several, by name", env{"NVIDIA_REQUIRE_DRIVER": "driver>=570", "NVIDIA_REQUIRE_ARCH": "arch>=9", "NVIDIA_REQUIRE_CUDA": "cuda>=12"},
			[]string{"NVIDIA_REQUIRE_ARCH arch>=9", "NVIDIA_REQUIRE_CUDA cuda>=12", "NVIDIA_REQUIRE_DRIVER driver>=570"}, ""},
		{"the prefix alone is a variable", env{"NVIDIA_REQUIRE_": "arch>=1"}, []string{"NVIDIA_REQUIRE_ arch>=1"}, ""},
		{"Jetpack's are of another kind", env{"NVIDIA_REQUIRE_JETPACK": "csv-mounts=all", "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS": "base"}, nil, ""},
		{"names are case-sensitive", env{"nvidia_require_cuda": "foo"}, nil, ""},
		{"an image older than CUDA 9", env{"CUDA_VERSION": "8.0.61"}, []string{"CUDA_VERSION cuda>=8.0"}, ""},
		{"with an empty requirement it is one", env{"CUDA_VERSION": "8.0.61", "NVIDIA_REQUIRE_CUDA": ""}, []string{"NVIDIA_REQUIRE_CUDA ", "CUDA_VERSION cuda>=8.0"}, ""},
		{"a newer image says it itself", env{"CUDA_VERSION": "12.9.1", "NVIDIA_REQUIRE_CUDA": "cuda>=12.9"}, []string{"NVIDIA_REQUIRE_CUDA cuda>=12.9"}, ""},
		{"a version of one component", env{"CUDA_VERSION": "12"}, []string{"CUDA_VERSION cuda>=12.0"}, ""},
		{"a version with a suffix", env{"CUDA_VERSION": "v10.1.243-rc1"}, []string{"CUDA_VERSION cuda>=10.1"}, ""},
		{"a version of four components", env{"CUDA_VERSION": "8.0.61.2"}, []string{"CUDA_VERSION cuda>=8.0"}, ""},
		{"an empty version", env{"CUDA_VERSION": ""}, nil, ""},
		{"a version that is none", env{"CUDA_VERSION": "cu121"}, nil, `CUDA_VERSION="cu121"`},
		{"a version whose patch is none", env{"CUDA_VERSION": "12.1.x"}, nil, `"12.1.x"`},
		{"a blank version", env{"CUDA_VERSION": " "}, nil, `" "`},
		{"a mistake names its variable", env{"NVIDIA_REQUIRE_CUDA": "cuda>=1", "NVIDIA_REQUIRE_DRIVER": "driver"}, nil, `NVIDIA_REQUIRE_DRIVER: invalid expression: "driver"`},
		{"an odd name is quoted", env{"NVIDIA_REQUIRE_\n": "driver"}, nil, `"NVIDIA_REQUIRE_\n": invalid expression`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, err := FromEnv(tc.env)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			var got []string
			for _, r := range list {
				got = append(got, r.Variable+" "+r.Text)
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
	many := env{}
	for i := range maxVariables {
		many["NVIDIA_REQUIRE_"+strings.Repeat("X", i)] = "cuda>=1"
	}
	if list, err := FromEnv(many); err != nil || len(list) != maxVariables {
		t.Errorf("%d variables: %d, %v", maxVariables, len(list), err)
	}
	many["NVIDIA_REQUIRE_Y"] = ""
	if _, err := FromEnv(many); err == nil || !strings.Contains(err.Error(), "more than 32 variables") {
		t.Errorf("too many variables: %v", err)
	}
}

func TestDisabled(t *testing.T) {
	for value, want := range map[string]bool{
		"1": true, "t": true, "T": true, "true": true, "TRUE": true, "True": true,
		"0": false, "false": false, "": false, "yes": false, "on": false, " true": false, "tRUE": false,
	} {
		if got := Disabled(map[string]string{"NVIDIA_DISABLE_REQUIRE": value}); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
	if Disabled(nil) {
		t.Error("disabled without the variable")
	}
}

// The longest expressions are parsed and checked in little time.
func TestLongExpressions(t *testing.T) {
	if _, err := Parse(strings.Repeat("cuda>=1 ", maxLength/8+1)); err == nil {
		t.Error("one that is too long was parsed")
	}
	for _, unit := range []string{"cuda>=1 ", "cuda>=1,", "1.", "<", "cuda>=1.1.1.1.1.1.1.1.1.1.1.1.1.1 "} {
		text := strings.Repeat(unit, maxLength/len(unit))
		if unit == "1." {
			text = "cuda>=" + text[:len(text)-6]
		}
		start := time.Now()
		for range 50 {
			if e, err := Parse(text); err == nil {
				e.check(h200)
			}
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%q: %v for 50 times", unit, d)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "cuda>=12.8 brand=unknown,driver>=470,driver<471", "arch!=9.0", "driver<=580.159.04", "a", "cuda>=1..", "brand=\x00", " ,, "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Parse(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x1b\x00") {
				t.Fatalf("control characters in %q", err)
			}
			return
		}
		// More knowledge never turns one certain verdict into the other.
		little, _ := e.check(Host{GPUs: []GPU{{}}})
		all, group := e.check(h200)
		if all == Unknown || little != Unknown && little != all {
			t.Fatalf("%q: %v with nothing known and %v with everything", text, little, all)
		}
		if all == Met && len(e) > 0 {
			if v, _ := group.check(h200); v != Met {
				t.Fatalf("%q: group %q does not hold", text, group)
			}
		}
		// What it prints can be parsed again.
		var groups []string
		for _, g := range e {
			groups = append(groups, g.String())
		}
		again, err := Parse(strings.Join(groups, " "))
		if err != nil || len(again) != len(e) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}
