// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

var (
	eighths = []rune(" ▏▎▍▌▋▊▉█") // of a character's width
	heights = []rune("·▁▂▃▄▅▆▇█") // a dot is nothing
)

// bar draws n as a bar that is columns long where n is most. Anything above 0 can
// be seen.
func bar(n, most, columns int) string {
	if n <= 0 || most <= 0 {
		return ""
	}
	size := max(1, min(n, most)*columns*8/most)
	text := strings.Repeat(string(eighths[8]), size/8)
	if rest := size % 8; rest > 0 {
		text += string(eighths[rest])
	}
	return text
}

// strip draws numbers as columns side by side, the highest where one is most.
func strip(numbers []int, most int) string {
	var b strings.Builder
	for _, n := range numbers {
		h := 0
		if n > 0 {
			h = max(1, min(n, most)*8/most)
		}
		b.WriteRune(heights[h])
	}
	return b.String()
}
