// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strings"
)

// Error is what is wrong with one object, one document, one file or the
// directory. Its message is one line, for example
//
//	web.yaml: document 2: Service default/web: spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive
type Error struct {
	// File is the name of the file within the directory, or the path of the
	// directory when the fault is not a file's.
	File string
	// Document counts the documents of the file from 1, leaving out empty
	// ones. It is 0 when the fault is the whole file's.
	Document int
	// Line is the line of the file, counted from 1, on which the document
	// starts, or 0. It is not part of the message.
	Line int
	// Item is the place of the object within a List, e.g. "items[3]".
	Item string
	// Object is the kind, namespace and name, e.g. "Service default/web", as
	// far as they could be read.
	Object string
	// Field is the field of the first fault, e.g. "spec.ports[0].port", or ""
	// when the fault has no field.
	Field string
	// Faults is what is wrong, field by field, when it is an object that is.
	Faults []Fault
	// Err is what is wrong otherwise, e.g. why the file could not be read.
	Err error
}

// Fault is what is wrong with one field.
type Fault struct {
	// Field is the path of the field, or "" when it is not known.
	Field string
	// Message is what is wrong with it, without the path.
	Message string
}

// The message lists so many faults, each of so many bytes: a slice with 1,000
// bad endpoints is still one line.
const (
	maxFaults  = 5
	maxMessage = 300
)

// Error returns the message.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Document > 0 {
		fmt.Fprintf(&b, ": document %d", e.Document)
	}
	if e.Item != "" {
		b.WriteString(": " + e.Item)
	}
	if e.Object != "" {
		b.WriteString(": " + e.Object)
	}
	for i, f := range e.Faults {
		if i == maxFaults {
			fmt.Fprintf(&b, "; and %d more", len(e.Faults)-i)
			break
		}
		sep := ": "
		if i > 0 {
			sep = "; "
		}
		b.WriteString(sep)
		if f.Field != "" {
			b.WriteString(oneLine(f.Field) + ": ")
		}
		b.WriteString(oneLine(f.Message))
	}
	if e.Err != nil {
		b.WriteString(": " + oneLine(e.Err.Error()))
	}
	return b.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// setFaults stores faults and the field of the first.
func (e *Error) setFaults(faults []Fault) {
	e.Faults = faults
	if len(faults) > 0 {
		e.Field = faults[0].Field
	}
}

// oneLine joins the lines of a text and cuts it to maxMessage bytes.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage], "") + "..."
}
