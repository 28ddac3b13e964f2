package prepare

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ParseChannels parses a list of IMEX channels: "0-3,7". device.Expected knows the driver's limit.
func ParseChannels(text string) ([]int, error) {
	var list []int
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(item), "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || from > to {
			return nil, fmt.Errorf("%.64q is not a number or range of IMEX channels, as 0 or 0-3", item)
		}
		for n := from; n <= to; n++ {
			list = append(list, int(n))
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}
