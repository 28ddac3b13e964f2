package probe

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// asking asks a script in the place of nvidia-shimctl.
func asking(t *testing.T, text string) func(Questions) Answers {
	program := script(t, text)
	return func(q Questions) Answers { return Ask(program, StartProcess, q) }
}

func TestMemoryLimits(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	check(t, err)
	defer dir.Close()
	arguments := filepath.Join(t.TempDir(), "arguments")
	ask := asking(t, `(cat; readlink /proc/self/fd/4) > `+arguments+`; printf '{"memory_use":[{"uuid":"GPU-a","soft":1,"hard":18446744073709551615,"used":3}]}'`)
	use, err := ReadMemoryLimits(ask, dir, []string{"GPU-a"})
	if want := (MemoryUse{MemoryLimit{"GPU-a", 1, NoMemoryLimit}, 3}); err != nil || len(use) != 1 || use[0] != want {
		t.Errorf("%+v, %v", use, err)
	}
	check(t, SetMemoryLimits(ask, dir, []MemoryLimit{{"GPU-a", math.MaxUint64 - 1, NoMemoryLimit}}))
	want := `{"set_memory":[{"uuid":"GPU-a","soft":18446744073709551614,"hard":18446744073709551615}],"timeout":10000000000}` + "\n" + dir.Name() + "\n"
	if got, err := os.ReadFile(arguments); err != nil || string(got) != want {
		t.Errorf("asked %q %v, want %q", got, err, want)
	}
	check(t, SetMemoryLimits(func(Questions) Answers { t.Error("asked"); return Answers{} }, dir, nil))
}

func TestTheCauseOfAMemoryError(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	check(t, err)
	defer dir.Close()
	set := func(answer string) error {
		return SetMemoryLimits(asking(t, "cat >/dev/null; "+answer), dir, []MemoryLimit{{"GPU-a", 0, 1 << 30}})
	}
	for _, cause := range memoryErrors {
		err := set(`printf '{"memory_error":"GPU 0: why","memory_cause":"` + MemoryCause(cause) + `"}'`)
		if err == nil || err.Error() != "GPU 0: why" || !errors.Is(err, cause) {
			t.Errorf("%v, want the cause %v", err, cause)
		}
		for _, other := range memoryErrors {
			if MemoryCause(other) != MemoryCause(cause) && errors.Is(err, other) {
				t.Errorf("%v is also %v", cause, other)
			}
		}
	}
	for answer, want := range map[string]string{
		`printf '{"memory_error":"why","memory_cause":"newer"}'`: "why",
		`printf '{}'`: "does not know this question",
		`echo nvidia-shimctl: broken >&2; exit 1`: "broken",
	} {
		if err := set(answer); err == nil || !strings.Contains(err.Error(), want) || MemoryCause(err) != "" {
			t.Errorf("%s: %v", answer, err)
		}
	}
}
