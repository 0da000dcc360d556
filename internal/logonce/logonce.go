// SPDX-License-Identifier: Apache-2.0

// Package logonce logs an error that persists once.
package logonce

import "k8s.io/klog/v2"

// Errors logs the errors of a call that is repeated. Its zero value is ready. Its methods may not
// be called concurrently.
type Errors struct{ last string }

// Log logs an error unless it has the text of the last one. A success (nil) forgets the last one.
func (e *Errors) Log(log klog.Logger, err error, message string, keysAndValues ...any) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if err != nil && text != e.last {
		log.Error(err, message, keysAndValues...)
	}
	e.last = text
}
