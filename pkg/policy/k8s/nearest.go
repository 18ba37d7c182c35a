package k8s

import "strings"

// nearest returns the known name that a misspelt one probably stands for, or "".
func nearest(name string, known []string) string {
	best, at := "", max(2, len(name)/3)+1
	for _, k := range known {
		if strings.EqualFold(k, name) {
			return k
		}
		if len(name) > 64 {
			continue
		}
		if d := edits(strings.ToLower(name), strings.ToLower(k)); d < at {
			best, at = k, d
		}
	}
	return best
}

// edits is the number of letters to insert, delete or replace (Levenshtein 1966).
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
