package memlimit

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// None as an amount means that there is no limit.
const None = math.MaxUint64

// MiB is the unit of NVIDIA's variables, in bytes.
const MiB = 1 << 20

// Amount is memory on one GPU.
type Amount struct {
	// GPU is the place of the GPU among those of the container, from 0, or its UUID. If it is empty,
	// the amount applies to each GPU that no other amount names.
	GPU string
	// Bytes are whole MiB, or None.
	Bytes uint64
}

// Amounts are the amounts of a list.
type Amounts []Amount

// The bounds of a list. No host has so many GPUs.
const (
	maxText  = 4096 // bytes
	maxItems = 64
)

// Parse parses a list such as "8Gi" or "8Gi,1=4000M,GPU-…=none". A number without a suffix counts in
// unit bytes; with unit 0 it is an error. Amounts are rounded up to whole MiB.
func Parse(text string, unit uint64) (Amounts, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("it has %d bytes: at most %d", len(text), maxText)
	}
	var list Amounts
	for item := range strings.SplitSeq(text, ",") {
		gpu, quantity, named := strings.Cut(item, "=")
		if !named {
			gpu, quantity = "", item
		}
		if gpu = strings.TrimSpace(gpu); named && !isGPU(gpu) {
			return nil, fmt.Errorf("%.256q is not the number or the UUID of a GPU", gpu)
		}
		n, err := parseQuantity(strings.TrimSpace(quantity), unit)
		if err != nil {
			return nil, err
		}
		for _, other := range list {
			if strings.EqualFold(other.GPU, gpu) {
				return nil, fmt.Errorf("%.256q has two amounts for one GPU", text)
			}
		}
		if list = append(list, Amount{GPU: gpu, Bytes: n}); len(list) > maxItems {
			return nil, fmt.Errorf("it has more than %d amounts", maxItems)
		}
	}
	return list, nil
}

// isGPU reports whether name is a number without leading zeros or looks like the UUID of a GPU.
func isGPU(name string) bool {
	n, err := strconv.ParseUint(name, 10, 16)
	return err == nil && strconv.FormatUint(n, 10) == name || len(name) > 4 && strings.EqualFold(name[:4], "GPU-")
}

// suffixes are those of Kubernetes' quantities.
var suffixes = map[string]uint64{
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
}

// A number has at most maxDigits digits, of which 2^64 bytes have twenty, and maxFraction behind the
// point, as Kubernetes' quantities.
const maxDigits, maxFraction = 32, 9

// parseQuantity parses "none", or a number with a suffix, such as "1.5Gi".
func parseQuantity(text string, unit uint64) (uint64, error) {
	if text == "none" {
		return None, nil
	}
	number := strings.TrimRight(text, "KMGTki")
	if scale, ok := suffixes[text[len(number):]]; ok {
		unit = scale
	} else if number != text {
		unit = 0
	}
	whole, fraction, point := strings.Cut(number, ".")
	digits := strings.Trim(whole+fraction, "0123456789") == "" && len(whole+fraction) > 0 && (fraction != "" || !point)
	if !digits || unit == 0 || len(whole) > maxDigits || len(fraction) > maxFraction {
		return 0, fmt.Errorf("%.256q is not an amount of memory such as 8Gi or 8000M", text)
	}
	high, bytes := uint64(1), uint64(0)
	if n, err := strconv.ParseUint(cmp.Or(whole, "0"), 10, 64); err == nil {
		high, bytes = bits.Mul64(n, unit)
	}
	if fraction != "" {
		n, _ := strconv.ParseUint(fraction, 10, 64)
		product, low := bits.Mul64(n, unit)
		part, rest := bits.Div64(product, low, uint64(math.Pow10(len(fraction))))
		bytes, low = bits.Add64(bytes, part, min(rest, 1))
		high += low
	}
	mib := bytes / MiB
	if bytes%MiB > 0 {
		mib++
	}
	if high > 0 || mib > None/MiB {
		return 0, fmt.Errorf("%.256q is more memory than 64 bits count", text)
	}
	return mib * MiB, nil
}
