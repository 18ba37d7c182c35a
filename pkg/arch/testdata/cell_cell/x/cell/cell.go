package cell
