// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
)

// Unit is the unit of a series' values.
type Unit string

// The units.
const (
	BitsPerSecond Unit = "bit/s"
	PerSecond     Unit = "1/s"
	Nanoseconds   Unit = "ns"
	Bytes         Unit = "B"
	Percent       Unit = "%"
	Count         Unit = ""
)

type scale struct {
	factor float64
	suffix string
}

// scales are the multiples in which units are written, in rising order.
var scales = map[Unit][]scale{
	BitsPerSecond: {{1e9, " Gbit/s"}},
	PerSecond:     {{1, " /s"}},
	Nanoseconds:   {{1, " ns"}, {1e3, " µs"}, {1e6, " ms"}, {1e9, " s"}},
	Bytes:         {{1, " B"}, {1e3, " kB"}, {1e6, " MB"}, {1e9, " GB"}},
	Percent:       {{1, " %"}},
	Count:         {{1, ""}},
}

// Format writes a value with its unit, to three digits, or to the whole number where
// that has more.
func (u Unit) Format(x float64) string {
	if x < 0 { // a difference of two measurements can be
		return "-" + u.Format(-x)
	}
	s := scales[u][0]
	for _, larger := range scales[u][1:] {
		if x >= 0.9995*larger.factor {
			s = larger
		}
	}
	x /= s.factor
	switch {
	case u == Percent:
		return fmt.Sprintf("%.1f%s", x, s.suffix)
	case x == math.Trunc(x) && (u == Count || u == PerSecond || s.suffix == " B"), x >= 99.95 && u != Count:
		return Thousands(int(math.Round(x))) + s.suffix
	case u == Count: // a median between two
		return Thousands(int(x)) + fmt.Sprintf("%.1f", x-math.Trunc(x))[1:]
	case x < 9.995:
		return fmt.Sprintf("%.2f%s", x, s.suffix)
	}
	return fmt.Sprintf("%.1f%s", x, s.suffix)
}

// Thousands writes a whole number with commas.
func Thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
