package memlimit

import (
	"fmt"
	"math"
	"math/big"
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

// maxDigits bounds a number: 2^64 bytes have twenty digits.
const maxDigits = 32

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
	digits := strings.Trim(number, "0123456789") == "" || strings.Count(number, ".") == 1 && strings.Trim(number, "0123456789.") == ""
	value, ok := new(big.Rat).SetString(number[:min(len(number), maxDigits)])
	if !digits || !ok || unit == 0 || len(number) > maxDigits {
		return 0, fmt.Errorf("%.256q is not an amount of memory such as 8Gi or 8000M", text)
	}
	value.Mul(value, new(big.Rat).SetFrac(new(big.Int).SetUint64(unit), big.NewInt(MiB)))
	mib := new(big.Int).Add(value.Num(), new(big.Int).Sub(value.Denom(), big.NewInt(1)))
	if mib.Quo(mib, value.Denom()); mib.Cmp(big.NewInt(None/MiB)) > 0 {
		return 0, fmt.Errorf("%.256q is more memory than 64 bits count", text)
	}
	return mib.Uint64() * MiB, nil
}
