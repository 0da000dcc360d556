// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/plain"
)

// Error describes the mistakes in one object, document or file. Its message is one
// line, for example
//
//	web.yaml: document 2: Service default/web: spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive
type Error struct {
	File     string  // its name within the directory, or the path of the directory
	Document int     // counted from 1, without empty ones; 0 for an error of the file as a whole
	Item     string  // the position of the object within a List, e.g. "items[3]"
	Object   string  // kind, namespace and name, as far as they could be read
	Errs     []error // the mistakes
}

// Limits of a message: number of mistakes, and bytes of each.
const (
	maxErrs    = 5
	maxMessage = 300
)

// Error returns the message.
func (e *Error) Error() string {
	parts := []string{e.File}
	if e.Document > 0 {
		parts = append(parts, fmt.Sprintf("document %d", e.Document))
	}
	parts = append(parts, slices.DeleteFunc([]string{e.Item, e.Object}, func(s string) bool { return s == "" })...)
	var errs []string
	for i, err := range e.Errs {
		if i == maxErrs {
			errs = append(errs, fmt.Sprintf("and %d more", len(e.Errs)-i))
			break
		}
		errs = append(errs, plain.Line(err.Error(), maxMessage))
	}
	return plain.Line(strings.Join(append(parts, strings.Join(errs, "; ")), ": "), 2*maxErrs*maxMessage)
}

// Unwrap returns Errs.
func (e *Error) Unwrap() []error { return e.Errs }
