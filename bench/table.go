// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table is text in columns: the first to the left, all others to the right.
type table struct {
	rows [][]string
}

// row adds a row; cells that are not given are empty.
func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// write writes the table. A row without cells is a blank line.
func (t *table) write(w io.Writer) error {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				line.WriteString(cell + pad)
			} else {
				line.WriteString("  " + pad + cell)
			}
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// duration is a time given in microseconds, to three digits, in the unit that
// suits it.
func duration(us float64) string {
	switch {
	case us < 999.5:
		return digits(us) + " µs"
	case us < 999_500:
		return digits(us/1e3) + " ms"
	}
	return digits(us/1e6) + " s"
}

// size is a number of bytes, to three digits, in powers of 1,000.
func size(n int64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 999_500:
		return digits(float64(n)/1e3) + " kB"
	case n < 999_500_000:
		return digits(float64(n)/1e6) + " MB"
	}
	return digits(float64(n)/1e9) + " GB"
}

// ratio is how many times as much b is, to two digits; nothing when either is 0.
func ratio(a, b float64) string {
	if a <= 0 || b <= 0 {
		return ""
	}
	switch r := b / a; {
	case r < 9.95:
		return fmt.Sprintf("%.1f", r)
	default:
		unit := 1.0
		for r/unit >= 99.5 {
			unit *= 10
		}
		return thousands(int(r/unit+0.5) * int(unit))
	}
}

// digits writes a number to three digits, more where they are before the point.
func digits(x float64) string {
	switch {
	case x < 9.995:
		return fmt.Sprintf("%.2f", x)
	case x < 99.95:
		return fmt.Sprintf("%.1f", x)
	}
	return thousands(int(x + 0.5))
}

// thousands writes a whole number with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
