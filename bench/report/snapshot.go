// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

// README's part between these lines is made from the records.
const (
	tableBegin = "<!-- made by bin/bench report --snapshot -->\n"
	tableEnd   = "<!-- end -->\n"
)

// snapshot writes the page and the records to a directory, and README's first table. It refuses
// what was measured in a short run, or without the figures of the table. What else is missing,
// failed or disturbed is named on log and on the page.
func snapshot(records map[string]*record, to, readme string, log io.Writer) error {
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
	table, err := readmeTable(records["scale"])
	if err != nil {
		return err
	}
	b, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(b), tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		return fmt.Errorf("%s: no lines %q and %q", readme, strings.TrimSpace(tableBegin), strings.TrimSpace(tableEnd))
	}
	data := filepath.Join(to, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	for _, r := range records {
		err = errors.Join(err, r.save(data))
	}
	return errors.Join(err, writePage(filepath.Join(to, "index.html"), records),
		os.WriteFile(readme, []byte(before+tableBegin+table+tableEnd+after), 0o644))
}

// readmeTable has the figures of nftables mode with 10,000 Services, and of the start and a change
// with 27,000.
func readmeTable(scale *record) (string, error) {
	if scale == nil {
		return "", errors.New("part scale was not run")
	}
	medians := func(services int, series string) (theirs, ours string, ratio float64, err error) {
		step := scale.find(fmt.Sprintf("services-%d", services))
		_, t, missing := step.outcome(series, "kube-proxy-nftables")
		s, o, missingOurs := step.outcome(series, "slipstream")
		if missing = cmp.Or(missing, missingOurs); missing != "" {
			return "", "", 0, fmt.Errorf("part scale, %s Services, %s: %s", bench.Thousands(services), series, missing)
		}
		a, b := bench.Median(t.Values), bench.Median(o.Values)
		return s.Unit.Format(a), s.Unit.Format(b), a / b, nil
	}
	text := &strings.Builder{}
	text.WriteString(`One change and the start of the proxy, with 10,000 Services of 10 endpoints on a real
kube-apiserver, beside kube-proxy v1.37 in nftables mode (` + "`make report`" + `;
[docs/report/index.html](docs/report/index.html) has the machine and all figures):

| | Slipstream | kube-proxy | Slipstream is | what you notice |
| --- | --- | --- | --- | --- |
`)
	for _, row := range []struct{ what, series, better, notice string }{
		{"start until Services answer", "start", "faster", "a node that joins serves sooner"},
		{"an endpoint replaced, median", "change", "faster", "new pods get connections, and old ones none, sooner"},
		{"CPU time for it", "change_cpu", "less", "processors are left to pods while Deployments roll out"},
		{"peak memory", "peak_rss", "less", "memory is left to pods"},
	} {
		theirs, ours, ratio, err := medians(10_000, row.series)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(text, "| %s | %s | %s | %sx %s | %s |\n", row.what, ours, theirs, digits(ratio), row.better, row.notice)
	}
	start, ourStart, _, err := medians(27_000, "start")
	if err != nil {
		return "", err
	}
	change, ourChange, _, err := medians(27_000, "change")
	fmt.Fprintf(text, "\nWith 27,000 Services of 4 endpoints, kube-proxy needs %s to start and %s for a change,\nSlipstream %s and %s.\n", start, change, ourStart, ourChange)
	return text.String(), err
}
