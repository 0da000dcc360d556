// SPDX-License-Identifier: Apache-2.0

// Package yamldoc splits a file into its YAML documents.
package yamldoc

import (
	"bytes"
	"regexp"
)

// Document is one document of a file.
type Document struct {
	Text []byte
	Line int // line of the file on which Text starts, from 1
}

// marker is the start of a line that separates documents: --- or ... It occurs
// neither in JSON nor, at the start of a line, within a YAML document.
var marker = regexp.MustCompile(`(?m)^(?:---|\.\.\.)(?:[ \t\r]|$)`)

// Split returns the documents of a file without those that have only blank lines,
// comments and directives. What follows a marker on its line belongs to the
// document.
func Split(data []byte) (all []Document) {
	start, line := 0, 1
	add := func(end int) {
		text := data[start:end]
		if !empty(text) {
			all = append(all, Document{text, line})
		}
		line += bytes.Count(text, []byte("\n"))
	}
	for _, at := range marker.FindAllIndex(data, -1) {
		add(at[0])
		start = at[0] + len("---")
		start += len(data[start:]) - len(bytes.TrimLeft(data[start:], " \t\r"))
	}
	add(len(data))
	return all
}

// empty reports whether all lines are blank, comments or directives.
func empty(text []byte) bool {
	for line := range bytes.Lines(text) {
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}
