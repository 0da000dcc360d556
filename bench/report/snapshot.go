// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// snapshot writes the page and the records to a directory. It refuses what was measured in a short run. What is missing,
// failed or disturbed is named on log and on the page.
func snapshot(records map[string]*record, to string, log io.Writer) error {
	for _, p := range parts {
		r := records[p.Name]
		if r == nil {
			fmt.Fprintf(log, "%s was not run\n", p.Name)
			continue
		}
		for _, s := range r.Steps {
			switch {
			case s.Fast:
				return fmt.Errorf("%s, %s: measured with FAST=1", p.Name, s.Name)
			case s.Failed != "":
				fmt.Fprintf(log, "%s, %s failed: %s\n", p.Name, s.Name, s.Failed)
			case s.Disturbed():
				fmt.Fprintf(log, "%s, %s was disturbed: other work used %.2f processors\n", p.Name, s.Name, s.Elsewhere)
			}
		}
	}
	data := filepath.Join(to, "data")
	err := os.MkdirAll(data, 0o755)
	for _, r := range records {
		err = errors.Join(err, r.save(data))
	}
	return errors.Join(err, writePage(filepath.Join(to, "index.html"), records))
}
