// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// short writes a duration with about three digits: "85 µs", "12.4 ms", "1.25 s".
func short(d time.Duration) string {
	switch us := float64(d) / 1e3; {
	case us < 999.5:
		return fmt.Sprintf("%.0f µs", us)
	case us < 99_950:
		return fmt.Sprintf("%.1f ms", us/1e3)
	case us < 999_500:
		return fmt.Sprintf("%.0f ms", us/1e3)
	default:
		return fmt.Sprintf("%.2f s", us/1e6)
	}
}

// whole writes a duration that is whole milliseconds or seconds: "36 ms", "18 s".
func whole(d time.Duration) string {
	if d >= 10*time.Second {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d ms", d/time.Millisecond)
}

// count writes a number with its thousands set off: "12,345".
func count[N int | int64](n N) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// plural writes a number of things: "1 claim", "2 claims".
func plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return count(n) + " " + thing
}

// and lists words: "a", "a and b", "a, b and c".
func and(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// left fills text up with spaces to n columns, or cuts it.
func left(text string, n int) string {
	if size := utf8.RuneCountInString(text); size < n {
		return text + strings.Repeat(" ", n-size)
	}
	return string([]rune(text)[:n])
}

// right fills text up with spaces before it to n columns.
func right(text string, n int) string {
	return strings.Repeat(" ", max(0, n-utf8.RuneCountInString(text))) + text
}
