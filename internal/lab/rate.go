// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// rateUnits are the units of rates as tc writes them, in bits per second. The
// longer ones come first, since they end like the shorter.
var rateUnits = []struct {
	name string
	bits float64
}{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// ParseRate reads a rate such as "10gbit" or "1.5mbit" and returns it in bits per
// second.
func ParseRate(text string) (uint64, error) {
	for _, unit := range rateUnits {
		number, ok := strings.CutSuffix(strings.ToLower(text), unit.name)
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(number, 64)
		if bits := value * unit.bits; err == nil && bits >= 1 && bits <= math.MaxUint32*8 {
			return uint64(bits), nil
		}
		break
	}
	return 0, fmt.Errorf("rate %q: want a number and gbit, mbit, kbit or bit, such as 10gbit, at most 34gbit", text)
}
