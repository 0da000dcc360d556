// SPDX-License-Identifier: Apache-2.0

// Package table writes tables of measurements for reading.
package table

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table is text in columns: the first to the left, all others to the right.
type Table struct {
	rows [][]string
}

// Row adds a row; cells that are not given are empty.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Write writes the table. A row without cells is a blank line.
func (t *Table) Write(w io.Writer) error {
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

// Duration is a time given in microseconds, to three digits, in the unit that
// suits it.
func Duration(us float64) string {
	switch {
	case us < 999.5:
		return Digits(us) + " µs"
	case us < 999_500:
		return Digits(us/1e3) + " ms"
	}
	return Digits(us/1e6) + " s"
}

// Size is a number of bytes, to three digits, in powers of 1,000.
func Size(n int64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 999_500:
		return Digits(float64(n)/1e3) + " kB"
	case n < 999_500_000:
		return Digits(float64(n)/1e6) + " MB"
	}
	return Digits(float64(n)/1e9) + " GB"
}

// Ratio is how many times as much b is, to two digits; nothing when either is 0.
func Ratio(a, b float64) string {
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
		return Thousands(int(r/unit+0.5) * int(unit))
	}
}

// Digits writes a number to three digits, more where they are before the point.
func Digits(x float64) string {
	switch {
	case x < 9.995:
		return fmt.Sprintf("%.2f", x)
	case x < 99.95:
		return fmt.Sprintf("%.1f", x)
	}
	return Thousands(int(x + 0.5))
}

// Thousands writes a whole number with commas.
func Thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
