// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	goyaml "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

// document is one document of a file, as JSON.
type document struct {
	json []byte
	line int   // of the file, from 1, on which it starts
	err  error // why json could not be made (a duplicate key leaves json usable for the name)
}

// documents returns the documents of a chunk: one of YAML, or any number of
// JSON ones that follow each other. A document that is null is left out.
func (c chunk) documents() []document {
	var docs []document
	if bytes.HasPrefix(bytes.TrimSpace(c.text), []byte("{")) {
		var ok bool
		if docs, ok = c.jsonDocuments(); !ok {
			docs = []document{c.yamlDocument()} // a YAML flow mapping: {kind: Service, ...}
		}
	} else {
		docs = []document{c.yamlDocument()}
	}
	kept := docs[:0]
	for _, d := range docs {
		if d.err != nil || string(d.json) != "null" {
			kept = append(kept, d)
		}
	}
	return kept
}

// jsonDocuments reads the chunk as JSON values one after the other. It returns
// false when not even the first is JSON; the reason of a later one is the error
// of the last document.
func (c chunk) jsonDocuments() ([]document, bool) {
	var docs []document
	decoder := json.NewDecoder(bytes.NewReader(c.text))
	line, counted := c.line, 0
	for {
		var value json.RawMessage
		start := int(decoder.InputOffset())
		err := decoder.Decode(&value)
		if err == io.EOF {
			return docs, true
		}
		if err != nil && len(docs) == 0 {
			return nil, false
		}
		// The value starts after the white space that follows the previous.
		start += len(c.text[start:]) - len(bytes.TrimLeftFunc(c.text[start:], unicode.IsSpace))
		line += bytes.Count(c.text[counted:start], []byte("\n"))
		counted = start
		if err != nil {
			if len(appendChunk(nil, c.text[start:], line)) == 0 {
				return docs, true // only comments
			}
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				at := min(int(syntax.Offset), len(c.text))
				err = fmt.Errorf("line %d: %w", line+bytes.Count(c.text[start:max(start, at)], []byte("\n")), err)
			}
			return append(docs, document{line: line, err: fmt.Errorf("JSON: %w", err)}), true
		}
		docs = append(docs, document{json: value, line: line})
	}
}

// yamlDocument converts the one YAML document that the chunk holds. Duplicate
// keys are errors.
func (c chunk) yamlDocument() document {
	d := document{line: c.line}
	if err := c.single(); err != nil {
		d.err = err
		return d
	}
	if d.json, d.err = yaml.YAMLToJSONStrict(c.text); d.err != nil {
		d.err = c.fileLines(d.err)
		// Without strictness it may still tell whose document it is.
		d.json, _ = yaml.YAMLToJSON(c.text)
	}
	return d
}

// single returns an error when the YAML parser would find more than one
// document in the chunk: it would pass over the others without a word. That
// can be after a flow mapping or a quoted scalar, and after a line break that
// YAML knows and split does not.
func (c chunk) single() error {
	first := bytes.TrimLeftFunc(c.text, unicode.IsSpace)
	if len(first) > 0 && unicode.IsLetter(rune(first[0])) && !strangeBreak(c.text) {
		return nil // a block mapping goes on until the end or an error
	}
	decoder := goyaml.NewDecoder(bytes.NewReader(c.text))
	var ignored any
	if err := decoder.Decode(&ignored); err != nil {
		return nil // the conversion says why
	}
	if err := decoder.Decode(&ignored); !errors.Is(err, io.EOF) {
		return fmt.Errorf("YAML: there is something after the end of the document that starts on line %d (is a line with --- missing?)", c.line)
	}
	return nil
}

// strangeBreak tells whether text has a YAML 1.1 line break other than LF and
// CRLF: CR, NEL, LS or PS.
func strangeBreak(text []byte) bool {
	if bytes.Count(text, []byte("\r")) != bytes.Count(text, []byte("\r\n")) {
		return true
	}
	for _, b := range []string{"\u0085", "\u2028", "\u2029"} {
		if bytes.Contains(text, []byte(b)) {
			return true
		}
	}
	return false
}

var yamlLine = regexp.MustCompile(`\bline (\d+): `)

// fileLines turns the line numbers in a message of the YAML parser from those
// of the chunk to those of the file, and says that it is YAML that is wrong.
func (c chunk) fileLines(err error) error {
	message := yamlLine.ReplaceAllStringFunc(err.Error(), func(s string) string {
		n, err := strconv.Atoi(yamlLine.FindStringSubmatch(s)[1])
		if err != nil {
			return s
		}
		return fmt.Sprintf("line %d: ", n+c.line-1)
	})
	message = strings.TrimPrefix(message, "yaml: ")
	message = strings.TrimPrefix(message, "unmarshal errors:")
	return errors.New("YAML: " + strings.TrimSpace(message))
}
