// SPDX-License-Identifier: Apache-2.0

package manifest

import "bytes"

// chunk is a piece of a file between two YAML document markers.
type chunk struct {
	text []byte
	line int // of the file, from 1, on which text starts
}

// split cuts a file at its YAML document markers: lines that start with --- or
// ... followed by a space or the end of the line. Neither can occur in
// JSON. What follows a marker on its line belongs to the next chunk. Chunks
// that hold nothing but blank lines, comments and directives are left out.
func split(data []byte) []chunk {
	var chunks []chunk
	start, startLine := 0, 1
	for pos, line := 0, 1; pos <= len(data); line++ {
		end := len(data)
		next := len(data) + 1
		if i := bytes.IndexByte(data[pos:], '\n'); i >= 0 {
			end = pos + i
			next = end + 1
		}
		if marker(data[pos:end]) {
			chunks = appendChunk(chunks, data[start:pos], startLine)
			start, startLine = pos+3, line
		}
		pos = next
	}
	return appendChunk(chunks, data[start:], startLine)
}

// marker tells whether a line starts or ends a YAML document.
func marker(line []byte) bool {
	if len(line) < 3 || (string(line[:3]) != "---" && string(line[:3]) != "...") {
		return false
	}
	return len(line) == 3 || line[3] == ' ' || line[3] == '\t' || line[3] == '\r'
}

// appendChunk appends a chunk without the lines that hold nothing at its start,
// unless there are no others.
func appendChunk(chunks []chunk, text []byte, line int) []chunk {
	for len(text) > 0 {
		first, rest, _ := bytes.Cut(text, []byte("\n"))
		trimmed := bytes.TrimSpace(first)
		if len(trimmed) > 0 && trimmed[0] != '#' && first[0] != '%' {
			return append(chunks, chunk{text, line})
		}
		text = rest
		line++
	}
	return chunks
}
