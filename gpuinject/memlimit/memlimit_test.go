package memlimit

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		text string
		unit uint64
		want string
	}{
		{"8192", MiB, "[{ 8589934592}]"},
		{"8Gi", 0, "[{ 8589934592}]"},
		{"8000M", 0, "[{ 8000634880}]"},
		{"1.5Gi", 0, "[{ 1610612736}]"},
		{"0.5Mi", 0, "[{ 1048576}]"},
		{"0.000000001Ti", 0, "[{ 1048576}]"},
		{".999999999Ti", 0, "[{ 1099511627776}]"},
		{"1.0000000001Gi", 0, "not an amount"},
		{"1.Gi", 0, "not an amount"},
		{"1000000", 1, "[{ 1048576}]"},
		{"0", MiB, "[{ 0}]"},
		{"none", 0, "[{ 18446744073709551615}]"},
		{" 2Gi , 1 = 1Gi , GPU-a=none", 0, "[{ 2147483648} {1 1073741824} {GPU-a 18446744073709551615}]"},
		{"17592186044415", MiB, "[{ 18446744073708503040}]"},
		{"17592186044416", MiB, "64 bits"},
		{"99999999999999999999Ti", 0, "64 bits"},
		{strings.Repeat("9", maxDigits+1), MiB, "not an amount"},
		{"1" + strings.Repeat(",0=1", maxItems), MiB, "two amounts"},
		{strings.Repeat(" ", maxText+1), MiB, "at most 4096"},
		{"8", 0, "not an amount"},
		{"", MiB, "not an amount"},
		{"8GB", 0, "not an amount"},
		{"8Pi", 0, "not an amount"},
		{"Gi", 0, "not an amount"},
		{".Gi", 0, "not an amount"},
		{"1e3", MiB, "not an amount"},
		{"1/2Gi", 0, "not an amount"},
		{"0x10Mi", 0, "not an amount"},
		{"1_0Mi", 0, "not an amount"},
		{"+1Mi", 0, "not an amount"},
		{"1.2.3Mi", 0, "not an amount"},
		{"1Gi,2Gi", 0, "two amounts"},
		{"1Gi,gpu-A=1Gi,GPU-a=2Gi", 0, "two amounts"},
		{"01=1Gi", 0, "not the number or the UUID"},
		{"=1Gi", 0, "not the number or the UUID"},
		{"MIG-1=1Gi", 0, "not the number or the UUID"},
	} {
		list, err := Parse(tc.text, tc.unit)
		if got := fmt.Sprint([]Amount(list)); err == nil && got != tc.want {
			t.Errorf("%.80q: %s, want %s", tc.text, got, tc.want)
		} else if err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.80q: %v, want %s", tc.text, err, tc.want)
		}
	}
	var many []string
	for i := range maxItems + 1 {
		many = append(many, fmt.Sprintf("%d=1Gi", i))
	}
	if _, err := Parse(strings.Join(many, ","), 0); err == nil || !strings.Contains(err.Error(), "more than 64") {
		t.Errorf("%v", err)
	}
}

// FuzzDecide takes any text as the values of a container's variables and annotations.
func FuzzDecide(f *testing.F) {
	f.Add("1024", "8Gi,1=2Gi", "GPU-a=1Gi", true)
	f.Fuzz(func(t *testing.T, variable, own, pod string, lowers bool) {
		annotations := map[string]string{AnnotationLimit: own, podPrefix + "c.gpu-memory.request": pod}
		a := Read(map[string]string{EnvLimit: variable}, annotations, "c")
		bound := Amounts{{Bytes: 4 << 30}}
		limits, _, err := Decide(a, Rules{Max: bound, OnlyLower: lowers}, []string{"GPU-a", "GPU-b"})
		if err != nil {
			return
		}
		for _, l := range limits {
			if l.Limit == 0 || l.Limit > bound[0].Bytes || l.Request > l.Limit || l.Limit%MiB != 0 {
				t.Errorf("%q %q %q: %+v", variable, own, pod, l)
			}
		}
	})
}

func TestChange(t *testing.T) {
	uuids := []string{"GPU-a", "GPU-b"}
	now := []Limit{{UUID: "GPU-a", Limit: 3 << 30, Request: 3 << 30, From: "of before"}}
	for text, want := range map[string]string{
		"6Gi":       "[{GPU-a 6442450944 6442450944 " + AnnotationLimit + "} {GPU-b 6442450944 6442450944 " + AnnotationLimit + "}]",
		"1=1Gi":     "[{GPU-b 1073741824 1073741824 " + AnnotationLimit + "}]",
		"1=none":    "[{GPU-b 0 8589934592 " + KeyMax + "}]",
		"GPU-c=1Gi": "not one of the container's 2 GPUs",
		"9Gi":       "more than the 8192 MiB of",
		"0":         "not an amount",
		"0Mi":       "leaves no memory",
		// A request does not take the limit away.
		"request 1Gi":             "[{GPU-a 1073741824 3221225472 of before} {GPU-b 1073741824 8589934592 " + KeyMax + "}]",
		"request 4Gi":             "asks for 4096 MiB, more than the 3072 MiB of",
		"request GPU-A=2Gi":       "[{GPU-a 2147483648 3221225472 of before}]",
		"request GPU-a=2Gi,0=1Gi": "has two amounts for GPU",
	} {
		annotations := map[string]string{AnnotationLimit: text}
		if amount, ok := strings.CutPrefix(text, "request "); ok {
			annotations = map[string]string{AnnotationRequest: amount}
		}
		w, err := ReadUpdate(annotations)
		var limits []Limit
		if err == nil {
			limits, err = Change(w, Amounts{{Bytes: 8 << 30}}, uuids, now)
		}
		got := fmt.Sprint(plain(limits))
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// limit is a Limit without its text.
type limit struct {
	uuid           string
	request, limit uint64
	from           string
}

func plain(limits []Limit) (list []limit) {
	for _, l := range limits {
		list = append(list, limit{l.UUID, l.Request, l.Limit, l.From})
	}
	return list
}
